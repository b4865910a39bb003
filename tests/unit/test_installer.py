"""The settings that the installer of the environment takes over."""

from __future__ import annotations

from tools.installer import uv_environment


def test_settings_of_pip_count_where_uv_has_none() -> None:
    of_pip = {"PIP_INDEX_URL": "https://mirror/simple", "PIP_FIND_LINKS": "/wheels", "PIP_CERT": ""}
    found = uv_environment({**of_pip, "UV_FIND_LINKS": "/others"})
    assert found == {**of_pip, "UV_DEFAULT_INDEX": "https://mirror/simple", "UV_FIND_LINKS": "/others"}
