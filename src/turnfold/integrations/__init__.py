"""Adapters to other systems, one file each."""
