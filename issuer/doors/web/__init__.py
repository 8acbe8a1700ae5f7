"""HTTP before an AsyncIssuer: a thin shell, whose routes call its methods and show their results as JSON.

Needs the extra `server`. Nothing here knows a rule about numbers, or how they are made.
"""

from issuer.errors import ConfigurationError

try:
    import starlette  # noqa: F401 - looked for before a module below needs it
except ImportError as _error:
    raise ConfigurationError('HTTP needs Starlette: pip install ".[server]" in a checkout') from _error
