"""How a field of a request is declared: once, as the type that it has when every default is filled in.

`declare` holds what a declaration is made of, `values` the types that many fields share, `node` the tree that is read
from the declarations, `texts` what they say to people. The request's check, the stored spec, OpenAPI, the flags of the
command line and the reference pages all follow from that tree.
"""
