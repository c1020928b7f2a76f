"""Tables of databases for graphs: PostgreSQL, DuckDB, and files that DuckDB reads."""

from hopline_sql.database import Database

__all__ = ["Database", "__version__"]
__version__ = "0.1.0"
