"""How numbers are shown: headings, units and formats, and tables as text, Markdown or LaTeX."""
