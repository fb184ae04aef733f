"""Processes that share a cache and are killed, threads, disks that are full: all stays right."""
