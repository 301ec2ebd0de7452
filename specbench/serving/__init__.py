"""Servers with OpenAI's API: what they are asked, and what they answer."""
