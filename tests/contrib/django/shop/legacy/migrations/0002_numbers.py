"""Numbers of the issuer."""

from django.db import migrations

from issuer.contrib.django import IssuerField


class Migration(migrations.Migration):
    dependencies = [("legacy", "0001_initial")]
    operations = [
        migrations.AlterField("Book", "id", IssuerField(primary_key=True, serialize=False, tag="books")),
        migrations.AlterField("Page", "id", IssuerField(primary_key=True, serialize=False, tag="pages")),
    ]
