import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;

/** A loop over snowflake-jdbc: ADDRESS DATABASE CONNECTIONS WARM_S SECONDS, as tests/perf/_peers.py describes. */
public class Loop extends Thread {
  static final String POINT_SELECT = "SELECT V FROM KV WHERE ID = ?";
  static final int KEYS = 50;
  static volatile boolean recording, stopping;

  final Connection connection;
  final List<Long> timesNs = new ArrayList<>();
  long key;

  Loop(Connection connection, int number) {
    this.connection = connection;
    this.key = number;
  }

  @Override
  public void run() {
    try (PreparedStatement statement = connection.prepareStatement(POINT_SELECT)) {
      while (!stopping) {
        key = (key * 7919 + 13) % KEYS + 1;
        boolean kept = recording;
        long begunNs = System.nanoTime();
        statement.setLong(1, key);
        try (ResultSet result = statement.executeQuery()) {
          while (result.next()) {
            result.getString(1);
          }
        }
        if (kept) {
          timesNs.add(System.nanoTime() - begunNs);
        }
      }
    } catch (Exception error) {
      error.printStackTrace();
      Runtime.getRuntime().halt(1);
    }
  }

  static Connection connect(String address, String database) throws Exception {
    Properties settings = new Properties();
    settings.put("user", "peer");
    settings.put("password", "any");
    settings.put("account", "embedded");
    settings.put("ssl", "off");
    settings.put("db", database);
    settings.put("schema", "PUBLIC");
    settings.put("tracing", "OFF");
    settings.put("QUERY_TAG", "peer");
    settings.put("CLIENT_TELEMETRY_ENABLED", "false");
    return DriverManager.getConnection("jdbc:snowflake://" + address + "/", settings);
  }

  public static void main(String[] arguments) throws Exception {
    List<Loop> loops = new ArrayList<>();
    for (int number = 0; number < Integer.parseInt(arguments[2]); number++) {
      loops.add(new Loop(connect(arguments[0], arguments[1]), number));
    }
    long warmMs = (long) (1000 * Double.parseDouble(arguments[3]));
    long ms = (long) (1000 * Double.parseDouble(arguments[4]));
    loops.forEach(Thread::start);
    Thread.sleep(warmMs);
    recording = ms > 0;
    System.out.println("ready");
    if (ms > 0) {
      Thread.sleep(ms);
    } else {
      while (System.in.read() >= 0) {}
    }
    stopping = true;
    List<Long> all = new ArrayList<>();
    for (Loop loop : loops) {
      loop.join();
      all.addAll(loop.timesNs);
    }
    if (!all.isEmpty()) {
      all.sort(null);
      System.out.printf(
          "{\"statements\": %d, \"p50_ms\": %f, \"p99_ms\": %f}%n", all.size(), at(all, 0.5), at(all, 0.99));
    }
    System.exit(0);
  }

  static double at(List<Long> sorted, double part) {
    return sorted.get((int) (part * (sorted.size() - 1))) / 1e6;
  }
}
