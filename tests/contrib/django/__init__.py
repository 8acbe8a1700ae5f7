"""The app for Django, with the real Django. `shop` is a project that uses it."""
