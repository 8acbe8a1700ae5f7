"""Rows that a migration inserts."""

from django.db import migrations


def more(apps, schema_editor):
    """Insert rows in a migration, as a project does."""
    if schema_editor.connection.alias == "default":
        book = apps.get_model("legacy", "Book")
        book.objects.bulk_create([book(title=f"moved {n}") for n in range(3)])
        book.objects.create(title="moved")


class Migration(migrations.Migration):
    dependencies = [("legacy", "0002_numbers")]
    operations = [migrations.RunPython(more, migrations.RunPython.noop)]
