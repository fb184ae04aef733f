"""The programs, by topic. Each file is executed anew for each case and each side."""
