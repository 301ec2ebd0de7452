"""The decoding loop, its random draws and its records."""
