"""Settings of the project. The tests set the variables."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = "tests"
DEBUG = os.environ.get("SHOP_DEBUG") != "0"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "issuer.contrib.django",
    "orders",
    "legacy",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

_engine = os.environ.get("SHOP_ENGINE", "sqlite3")
if _engine == "mysql":
    import pymysql

    pymysql.version_info = (2, 2, 4, "final", 0)  # Django asks for mysqlclient, which this stands in for
    pymysql.install_as_MySQLdb()


def _database(name: str) -> dict[str, object]:
    if _engine == "sqlite3":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": BASE_DIR / f"{name}.sqlite3",
            "OPTIONS": {"timeout": 60, "transaction_mode": "IMMEDIATE"},
        }
    return {
        "ENGINE": f"django.db.backends.{_engine}",
        "HOST": "127.0.0.1",
        "PORT": os.environ["SHOP_PORT"],
        "USER": "tester",
        "NAME": f"{os.environ['SHOP_NAME']}_{name}",
    }


DATABASES = {"default": _database("shop"), "eu": _database("eu")}
DATABASE_ROUTERS = ["routers.ByRegion"]

ISSUER = {"store": os.environ.get("SHOP_STORE", f"sqlite:///{BASE_DIR / 'issuer.sqlite3'}")}
if "SHOP_REDIS" in os.environ:
    ISSUER["redis"] = os.environ["SHOP_REDIS"]
ISSUER_DATABASES = {"eu": {"store": f"sqlite:///{BASE_DIR / 'issuer-eu.sqlite3'}"}}
ISSUER_TAGS = {"codes": {"format": "N-{seq:05}", "start": 100}, "coupons": {"order": "trend"}}
