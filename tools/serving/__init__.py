"""Parts of ``tools serve``: the server's command line, its ports, its process, what it leaves."""
