"""Backup and restore: what a backup holds, its form, and how it is written, checked and put back."""
