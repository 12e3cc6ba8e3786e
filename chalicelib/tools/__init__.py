"""The port to tools. A new kind is a file here and a line in `toolbox.KINDS`."""
