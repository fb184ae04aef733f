"""Random graphs through all passes."""
