"""The store on SQLite and PostgreSQL, through SQLAlchemy."""
