"""What a call does when its graph fails as it runs."""
