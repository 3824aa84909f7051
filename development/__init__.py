"""What tests and benchmarks share: servers, a whole stack, and the checker that shares no code with the product.

Nothing here is shipped.
"""
