"""Notes in SQLAlchemy, whose migration Alembic writes by itself and is applied as it was written."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from alembic import command
from alembic.config import Config
from counting import Writes, main
from sqlalchemy import (
    Column,
    DateTime,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    insert,
    update,
)

first, newest = MetaData(), MetaData()
Table("authors", first, Column("id", Integer, primary_key=True), Column("name", String(80), nullable=False))
Table(
    "notes",
    first,
    Column("id", Integer, primary_key=True),
    Column("author_id", ForeignKey("authors.id")),
    Column("text", String),
    Column("score", Float),
)
Table("authors", newest, Column("id", Integer, primary_key=True), Column("name", String(80), nullable=False))
Table(
    "notes",
    newest,
    Column("id", Integer, primary_key=True),
    Column("author_id", ForeignKey("authors.id")),
    Column("text", String),
    Column("score", Float),
    Column("written", DateTime),
)
Table(
    "labels",
    newest,
    Column("note_id", ForeignKey("notes.id"), primary_key=True),
    Column("label", String(30), primary_key=True),
)

ENVIRONMENT = """
from alembic import context
from sqlalchemy import create_engine
import alembic_notes

engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=alembic_notes.newest, render_as_batch=True, **OPTIONS)
    with context.begin_transaction():
        context.run_migrations()
"""
TEMPLATE = '''"""${message}"""
from alembic import op
import sqlalchemy as sa
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}

def upgrade():
    ${upgrades if upgrades else "pass"}

def downgrade():
    ${downgrades if downgrades else "pass"}
'''


def config_for(path: str, options: str = "", hooks: str = "") -> Config:
    """A folder beside the file, as `alembic init` makes it."""
    folder = Path(path).parent / "migrations"
    (folder / "versions").mkdir(parents=True, exist_ok=True)
    (folder / "env.py").write_text(f"{hooks}\n{ENVIRONMENT.replace('**OPTIONS', options)}")
    (folder / "script.py.mako").write_text(TEMPLATE)
    config = Config()
    config.set_main_option("script_location", str(folder))
    config.set_main_option("sqlalchemy.url", f"sqlite:///{path}")
    return config


def begin(path: str, writes: Writes) -> None:
    engine = create_engine(f"sqlite:///{path}")
    first.create_all(engine)
    with engine.begin() as connection:
        authors = [{"name": f"author {number}"} for number in range(30)]
        writes.do(lambda: connection.execute(insert(first.tables["authors"]), authors))
        notes = [{"author_id": number % 30 + 1, "text": f"note {number}", "score": number / 8} for number in range(300)]
        writes.do(lambda: connection.execute(insert(first.tables["notes"]), notes))


def migrate(path: str, writes: Writes) -> None:
    """The migration drops what SQLAlchemy's models do not know, and so the outbox."""
    config = config_for(path)
    writes.do(lambda: command.revision(config, "more", autogenerate=True))
    writes.do(lambda: command.upgrade(config, "head"))


def revise(path: str, writes: Writes, name: str) -> None:
    """Write a migration, with the hook of this name from the file beside the database."""
    config = config_for(path, f"{name}={name}", (Path(path).parent / "hooks.py").read_text())
    writes.do(lambda: command.revision(config, name, autogenerate=True))


def work(path: str, writes: Writes) -> None:
    engine = create_engine(f"sqlite:///{path}")
    notes, labels = newest.tables["notes"], newest.tables["labels"]

    def write(number: int) -> None:
        with engine.begin() as connection:
            row = connection.execute(notes.select().where(notes.c.id == number + 1)).one()
            words = {"score": row.score + 1, "written": datetime(2026, 5, 1, 8, number % 60, tzinfo=UTC)}
            connection.execute(update(notes).where(notes.c.id == row.id).values(words))
            connection.execute(insert(labels), {"note_id": row.id, "label": f"label {number}"})
            connection.execute(insert(notes), {"author_id": row.author_id, "text": None})

    for number in range(100):
        writes.do(write, number)


if __name__ == "__main__":
    hooks = {
        name: lambda path, writes, name=name: revise(path, writes, name) for name in ("include_name", "include_object")
    }
    main({"begin": begin, "migrate": migrate, "work": work, **hooks})
