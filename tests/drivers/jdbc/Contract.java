import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.Date;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;

/** Prints what the driver makes of the server at HOST:PORT: a line "name, tab, value" for each check. */
public class Contract {
  interface Check {
    Object run() throws Exception;
  }

  static void check(String name, Check check) {
    Object value;
    try {
      value = check.run();
    } catch (SQLException error) {
      value = "error " + error.getErrorCode() + " " + error.getSQLState();
    } catch (Exception error) {
      value = "unexpected " + error;
    }
    System.out.println(name + "\t" + String.valueOf(value).replace("\n", "\\n"));
  }

  static List<List<Object>> rows(Connection connection, String sql) throws SQLException {
    List<List<Object>> found = new ArrayList<>();
    try (Statement statement = connection.createStatement(); ResultSet result = statement.executeQuery(sql)) {
      int columns = result.getMetaData().getColumnCount();
      while (result.next()) {
        List<Object> row = new ArrayList<>();
        for (int column = 1; column <= columns; column++) {
          row.add(result.getObject(column));
        }
        found.add(row);
      }
    }
    return found;
  }

  static int changed(Connection connection, String sql) throws SQLException {
    try (Statement statement = connection.createStatement()) {
      return statement.executeUpdate(sql);
    }
  }

  public static void main(String[] arguments) throws Exception {
    Properties settings = new Properties();
    settings.put("user", "tester");
    settings.put("password", "any");
    settings.put("account", "embedded");
    settings.put("ssl", "off");
    settings.put("db", "JDBC");
    settings.put("schema", "PUBLIC");
    settings.put("warehouse", "BENCH_WH");
    settings.put("tracing", "OFF");
    settings.put("TIMEZONE", "UTC");
    try (Connection connection = DriverManager.getConnection("jdbc:snowflake://" + arguments[0] + "/", settings)) {
      context(connection);
      types(connection);
      batches(connection);
      transactions(connection);
      errors(connection);
      large(connection);
      limits(connection);
    }
    settings.put("JDBC_QUERY_RESULT_FORMAT", "ARROW");
    check("arrow", () -> DriverManager.getConnection("jdbc:snowflake://" + arguments[0] + "/", settings).isClosed());
  }

  static void context(Connection connection) {
    String sql = "SELECT CURRENT_USER(), CURRENT_DATABASE(), CURRENT_SCHEMA(), CURRENT_WAREHOUSE()";
    check("context", () -> rows(connection, sql));
    check("valid", () -> connection.isValid(10));
    check("ddl", () -> changed(connection, "CREATE OR REPLACE HYBRID TABLE H (ID NUMBER PRIMARY KEY, V NUMBER)"));
    check("insert", () -> changed(connection, "INSERT INTO H VALUES (1, 10), (2, 20)"));
    check("update", () -> changed(connection, "UPDATE H SET V = V + 1"));
    check("delete", () -> changed(connection, "DELETE FROM H WHERE ID = 2"));
  }

  static void types(Connection connection) throws SQLException {
    changed(connection, "CREATE OR REPLACE TABLE T (N NUMBER(38,0), P NUMBER(10,2), F FLOAT, S VARCHAR, B BOOLEAN,"
        + " D DATE, TI TIME, NTZ TIMESTAMP_NTZ, BI BINARY)");
    check("binds", () -> {
      String sql = "INSERT INTO T SELECT ?, ?, ?, ?, ?, ?, ?::TIME, ?::TIMESTAMP_NTZ, ?";
      try (PreparedStatement statement = connection.prepareStatement(sql)) {
        statement.setLong(1, 42);
        statement.setBigDecimal(2, new BigDecimal("-1.25"));
        statement.setDouble(3, 0.1);
        statement.setString(4, "it's \u00e4\u65e5 \\ \"x\"");
        statement.setBoolean(5, true);
        statement.setDate(6, Date.valueOf("2024-02-29"));
        statement.setString(7, "01:02:03.5");
        statement.setString(8, "2024-02-29 12:34:56.789");
        statement.setBytes(9, new byte[] {0, 1, (byte) 255});
        return statement.executeUpdate();
      }
    });
    check("nulls", () -> {
      try (PreparedStatement statement = connection.prepareStatement("INSERT INTO T (N, S) VALUES (?, ?)")) {
        statement.setNull(1, Types.BIGINT);
        statement.setNull(2, Types.VARCHAR);
        return statement.executeUpdate();
      }
    });
    check("values", () -> rows(connection, "SELECT N, P, F, S, B, D, TI, NTZ FROM T WHERE N IS NOT NULL"));
    check("bytes", () -> rows(connection, "SELECT TO_VARCHAR(BI) FROM T WHERE N IS NOT NULL"));
    check("null values", () -> rows(connection, "SELECT N, S FROM T WHERE N IS NULL"));
    check("described", () -> {
      try (Statement statement = connection.createStatement();
          ResultSet result = statement.executeQuery("SELECT N, P, S FROM T")) {
        ResultSetMetaData columns = result.getMetaData();
        return columns.getColumnTypeName(1) + " " + columns.getPrecision(2) + "," + columns.getScale(2) + " "
            + columns.getColumnLabel(3);
      }
    });
  }

  static void batches(Connection connection) throws SQLException {
    changed(connection, "CREATE OR REPLACE TABLE BATCHED (ID NUMBER, NAME VARCHAR)");
    check("batch", () -> {
      try (PreparedStatement statement = connection.prepareStatement("INSERT INTO BATCHED VALUES (?, ?)")) {
        for (int id = 0; id < 500; id++) {
          statement.setInt(1, id);
          statement.setString(2, "name " + id);
          statement.addBatch();
        }
        return statement.executeBatch().length;
      }
    });
    check("batched", () -> rows(connection, "SELECT COUNT(*), SUM(ID), MAX(NAME) FROM BATCHED"));
  }

  static void transactions(Connection connection) throws SQLException {
    connection.setAutoCommit(false);
    changed(connection, "UPDATE H SET V = 1000");
    connection.rollback();
    check("rolled back", () -> rows(connection, "SELECT V FROM H"));
    changed(connection, "UPDATE H SET V = 7");
    connection.commit();
    connection.setAutoCommit(true);
    check("committed", () -> rows(connection, "SELECT V FROM H"));
  }

  static void errors(Connection connection) {
    check("missing table", () -> rows(connection, "SELECT * FROM NOWHERE"));
    check("syntax", () -> rows(connection, "SELEC 1"));
    check("division", () -> rows(connection, "SELECT 1 / 0"));
    check("duplicate key", () -> changed(connection, "INSERT INTO H VALUES (1, 1)"));
    check("goes on", () -> rows(connection, "SELECT 1"));
  }

  static void large(Connection connection) {
    check("large", () -> {
      long rows = 0;
      long sum = 0;
      String sql = "SELECT SEQ4(), RPAD('x', 100, 'y') FROM TABLE(GENERATOR(ROWCOUNT => 60000))";
      try (Statement statement = connection.createStatement(); ResultSet result = statement.executeQuery(sql)) {
        while (result.next()) {
          rows++;
          sum += result.getLong(1) + result.getString(2).length();
        }
      }
      return rows + " " + sum;
    });
  }

  static void limits(Connection connection) {
    check("timeout", () -> {
      try (Statement statement = connection.createStatement()) {
        statement.setQueryTimeout(1);
        return statement.executeQuery("SELECT SYSTEM$WAIT(60)").next();
      }
    });
    check("cancel", () -> {
      try (Statement statement = connection.createStatement()) {
        Thread canceller = new Thread(() -> {
          try {
            Thread.sleep(1500);
            statement.cancel();
          } catch (Exception error) {
            System.err.println(error);
          }
        });
        canceller.start();
        return statement.executeQuery("SELECT SYSTEM$WAIT(60)").next();
      }
    });
    check("still open", () -> rows(connection, "SELECT 2"));
  }
}
