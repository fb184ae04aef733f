"""Reports: what `plait.compile` made of a function, as values, text and one HTML page."""
