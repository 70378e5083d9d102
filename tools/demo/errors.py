"""What the demo commands raise when they cannot go on."""


class DemoError(Exception):
    """A demo folder or adapter cannot be made; the text names the file and the cure."""
