"""The names that `issuer` offers."""

import issuer


def test_next_is_not_exported_by_a_star_import() -> None:
    assert "next" not in issuer.__all__
    assert set(issuer.__all__) <= set(dir(issuer))
