"""Lets subscribers in, and keeps a consumer of the stream FEED for each subscription."""
