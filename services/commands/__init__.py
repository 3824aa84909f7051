"""Decides commands on the newest state and appends what was decided; answers the api itself."""
