"""The audit: one JSON object a line, one file a process, chained so that no change goes unseen."""
