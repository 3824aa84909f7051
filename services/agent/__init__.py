"""The agent: makes one cluster's pods follow WANTED, and says what is there. It decides nothing about workloads."""
