"""httpx without its authorities: they are read anew for each call, which takes 50 ms."""

import functools
import ssl

import httpx

_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
get, post, request = (
    functools.partial(one, verify=_CONTEXT) for one in (httpx.get, httpx.post, httpx.request)
)
