"""Arrays and records in, numbers out: nothing here reads a file, draws a picture or writes a page."""
