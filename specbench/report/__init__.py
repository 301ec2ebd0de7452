"""Pages for a browser, each a single file that fetches nothing."""
