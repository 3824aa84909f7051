"""Stands before what workloads serve: knows from the log who has which address, lets in whom its owner lets in, and
forwards HTTP to their pods.
"""
