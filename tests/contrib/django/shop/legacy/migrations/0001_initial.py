"""Numbers of the database."""

from django.db import migrations, models

AUTOMATIC = {"primary_key": True, "auto_created": True, "serialize": False, "verbose_name": "ID"}


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            "Book", [("id", models.BigAutoField(**AUTOMATIC)), ("title", models.CharField(max_length=100))]
        ),
        migrations.CreateModel(
            "Page", [("id", models.AutoField(**AUTOMATIC)), ("book", models.ForeignKey("legacy.Book", models.CASCADE))]
        ),
        migrations.CreateModel(
            "Word",
            [("id", models.BigAutoField(**AUTOMATIC)), ("page", models.ForeignKey("legacy.Page", models.CASCADE))],
        ),
    ]
