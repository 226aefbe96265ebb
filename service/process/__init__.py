"""What a node requests from the operating system for its process: a short time slice, returned memory, open files."""
