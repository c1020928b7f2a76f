"""Tables of databases for graphs: PostgreSQL, DuckDB, and files that DuckDB reads."""

from hopline_sql.database import Database
from hopline_sql.description import Description

__all__ = ["Database", "Description", "__version__"]
__version__ = "0.1.0"
