"""The request field registry: what a person can say of a workload, one module per section of the form.

The pydantic models here are the only list of fields. HTTP validation, the OpenAPI document, the flags of the command
line and the reference page are all made from them, so they cannot disagree.
"""
