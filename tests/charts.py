"""Checks the Helm chart, and that deploy/kubernetes/ is what it renders and what Kubernetes accepts.

`make charts` runs it, in an environment of its own: .charts. `make charts K=--write` writes the manifests anew.
"""

import sys
from pathlib import Path

import helm_python
import kubernetes_validate
import yaml

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
MANIFESTS = DEPLOY / "kubernetes" / "issuer.yaml"
HEAD = (
    "# What `helm template issuer deploy/helm` renders. deploy/helm/values.yaml describes the secret to create first.\n"
)

#: The oldest and the newest version of Kubernetes that is checked.
VERSIONS = ("1.29", "1.37")


def rendered() -> str:
    """Return the manifests of the chart, with its default values."""
    with helm_python.Chart.load(str(DEPLOY / "helm")) as chart:
        files = chart.render(name="issuer", namespace="default", is_install=True)
    parts = ("\n".join(line.rstrip() for line in files[name].strip().splitlines()) for name in sorted(files))
    return HEAD + "".join(f"---\n{part}\n" for part in parts)


def main() -> None:
    text = rendered()
    if "--write" in sys.argv:
        MANIFESTS.write_text(text, "utf-8")
    faults = list(helm_python.lint(str(DEPLOY / "helm"), strict=True)["errors"])
    if MANIFESTS.read_text("utf-8") != text:
        faults.append(f"{MANIFESTS} is not what the chart renders: make charts K=--write")
    for manifest in yaml.safe_load_all(text):
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(manifest, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                faults.append(f"{manifest['kind']}, Kubernetes {version}: {error}")
    sys.exit("\n".join(faults) or 0)


if __name__ == "__main__":
    main()
