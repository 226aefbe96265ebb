"""What a node asks of the operating system for its own process: a turn soon, memory given back, files to open."""
