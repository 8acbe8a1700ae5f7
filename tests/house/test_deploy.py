"""What `deploy/` holds is valid, names settings that are there, and keeps what the pages promise of it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from issuer.settings import DEFINITIONS
from tests.house.packaging.test_sources import PARTS
from tests.servers.absent import absent

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
VARIABLES = {"ISSUER_CONFIG", *(each.variable for each in DEFINITIONS.values())}

#: The highest exposure that `systemd-analyze security` may find, of 10. It is given in tenths.
EXPOSED_MOST = "20"


@pytest.mark.parametrize("path", [each for each in DEPLOY.rglob("*") if each.is_file()], ids=lambda path: path.name)
def test_each_variable_that_is_named_is_of_a_setting(path: Path) -> None:
    assert set(re.findall(r"\bISSUER_[A-Z_]+", path.read_text("utf-8"))) <= VARIABLES


# ------------------------------------------------------------------ systemd


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    found = shutil.which("systemd-analyze") or absent("systemd-analyze", "systemd")
    return subprocess.run([found, *arguments], capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.live
@pytest.mark.covers("U.24")
def test_systemd_takes_the_units_and_finds_the_service_hardened(tmp_path: Path) -> None:
    for each in (DEPLOY / "systemd").iterdir():
        # The program is not installed here.
        text = each.read_text("utf-8").replace("/opt/issuer/bin/issuer", sys.executable)
        (tmp_path / each.name).write_text(text, "utf-8")
    units = sorted(map(str, tmp_path.iterdir()))
    assert len(units) == 3
    verified = analyze("verify", *units)
    assert (verified.returncode, verified.stdout) == (0, "")
    ours = [line for line in verified.stderr.splitlines() if str(tmp_path) in line or line.startswith("issuer")]
    assert ours == []
    secured = analyze("security", "--offline=yes", f"--threshold={EXPOSED_MOST}", str(tmp_path / "issuer.service"))
    assert secured.returncode == 0, secured.stdout


def test_the_socket_units_name_the_protocols_and_the_service() -> None:
    for name in ("http", "resp"):
        unit = (DEPLOY / "systemd" / f"issuer-{name}.socket").read_text("utf-8")
        assert f"\nFileDescriptorName={name}\nService=issuer.service\n" in unit


# ------------------------------------------------------------------ the image


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage of the Dockerfile: name and argument."""
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found: list[list[tuple[str, str]]] = [[]]
    for name, _, argument in (line.partition(" ") for line in lines if line):
        if name == "FROM":
            found.append([])
        found[-1].append((name, argument))
    return found


@pytest.mark.covers("U.24")
def test_the_image_is_pinned_and_has_no_checkout_and_no_rights() -> None:
    [(arg, base)], build, final = stages()
    assert arg == "ARG"
    assert re.fullmatch(r"PYTHON=python:3\.\d+-slim@sha256:[0-9a-f]{64}", base)
    assert (build[0], final[0]) == (("FROM", "${PYTHON} AS build"), ("FROM", "${PYTHON}"))
    copied = [argument for name, argument in final if name in {"COPY", "ADD", "RUN"}]
    assert copied == ["--from=build /opt/issuer /opt/issuer"]
    assert ("USER", "10001:10001") in final
    assert {"HEALTHCHECK", "STOPSIGNAL"} <= {name for name, _ in final}


def test_the_image_is_built_from_the_package_alone() -> None:
    lines = (DEPLOY.parent / ".dockerignore").read_text("utf-8").splitlines()[1:]
    assert lines[0] == "*"
    assert {each[1:] for each in lines if each.startswith("!")} == {*PARTS}
    assert lines[-1] == "**/__pycache__"


# ------------------------------------------------------------------ compose


@pytest.mark.covers("U.24")
def test_compose_has_two_servers_behind_nginx_and_their_metrics_on_a_dashboard() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    assert {*services} == {
        "redis", "mongodb", "postgresql", "issuer-1", "issuer-2", "nginx", "prometheus", "grafana",
    }  # fmt: skip
    for each in (services["issuer-1"], services["issuer-2"]):
        assert (each["read_only"], each["cap_drop"], each["tmpfs"]) == (True, ["ALL"], ["/tmp"])
        assert (DEPLOY / each["build"]["context"] / each["build"]["dockerfile"]).is_file()
        assert {*each["environment"]} <= VARIABLES
    # What is published is for this machine alone.
    assert all(port.startswith("127.0.0.1:") for each in services.values() for port in each.get("ports", ()))
    # What is mounted is there.
    mounted = [one.partition(":")[0] for each in services.values() for one in each.get("volumes", ())]
    assert all((DEPLOY / one).exists() for one in mounted if one.startswith("."))
    (scraped,) = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text("utf-8"))["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": ["issuer-1:8000", "issuer-2:8000"]}]
    hosts = services["issuer-1"]["environment"]["ISSUER_ALLOWED_HOSTS"].split(",")
    assert hosts == ["issuer-1", "issuer-2"]
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/issuer.yaml").read_text("utf-8"))[
        "providers"
    ]
    assert f"./grafana:{provider['options']['path']}:ro" in services["grafana"]["volumes"]


def test_nginx_is_configured_as_the_page_says() -> None:
    page = (DEPLOY.parent / "docs/operate/serving.md").read_text("utf-8")
    (recipe,) = re.findall(r"^```nginx\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ours = (DEPLOY / "nginx.conf").read_text("utf-8").partition("\n\n")[2]
    for number, address in ((1, "10.0.0.5:8000"), (2, "10.0.0.6:8000")):
        ours = ours.replace(f"issuer-{number}:8000", address)
    assert ours == recipe


# ------------------------------------------------------------------ Kubernetes


@pytest.mark.covers("U.24")
def test_a_rolling_update_in_kubernetes_stops_a_pod_after_it_has_left_the_service() -> None:
    manifests = list(yaml.safe_load_all((DEPLOY / "kubernetes/issuer.yaml").read_text("utf-8")))
    kinds = {each["kind"]: each["spec"] for each in manifests}
    assert {*kinds} == {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
    deployment, pod = kinds["Deployment"], kinds["Deployment"]["template"]["spec"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    (container,) = pod["containers"]
    values = {each["name"]: each.get("value", "") for each in container["env"]}
    delay, readiness = int(values["ISSUER_DRAIN_DELAY"]), container["readinessProbe"]
    assert pod["terminationGracePeriodSeconds"] > delay + 6
    assert delay > readiness["periodSeconds"] * readiness["failureThreshold"]
    probed = [container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")]
    assert probed == ["/livez", "/readyz"]
    # Its variables of services would look like settings.
    assert (pod["enableServiceLinks"], pod["automountServiceAccountToken"]) == (False, False)
    secrets = {each["name"] for each in container["env"] if "valueFrom" in each}
    assert secrets == {"ISSUER_REDIS_URL", "ISSUER_STORE_URL"}
    mounted = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert values["ISSUER_TOKENS"] == f"{mounted['tokens']}/tokens.toml"
    (metrics,) = [each for each in pod["volumes"] if "emptyDir" in each]
    assert mounted[metrics["name"]] == "/tmp"
    held = container["securityContext"]
    assert held["readOnlyRootFilesystem"] is pod["securityContext"]["runAsNonRoot"] is True
    assert held["capabilities"] == {"drop": ["ALL"]}
    labels = deployment["selector"]["matchLabels"]
    assert labels == kinds["Service"]["selector"] == kinds["PodDisruptionBudget"]["selector"]["matchLabels"]
    assert labels == kinds["NetworkPolicy"]["podSelector"]["matchLabels"]
