"""Pages for a browser: each one file, with everything in it and nothing fetched from elsewhere."""
