import static us.abstracta.jmeter.javadsl.JmeterDsl.testPlan;
import static us.abstracta.jmeter.javadsl.JmeterDsl.threadGroup;
import static us.abstracta.jmeter.javadsl.jdbc.JdbcJmeterDsl.jdbcConnectionPool;
import static us.abstracta.jmeter.javadsl.jdbc.JdbcJmeterDsl.jdbcSampler;

import java.sql.Types;
import java.time.Duration;
import net.snowflake.client.jdbc.SnowflakeDriver;
import us.abstracta.jmeter.javadsl.core.TestPlanStats;
import us.abstracta.jmeter.javadsl.core.stats.StatsSummary;

/** A JMeter test plan with its JDBC sampler: ADDRESS DATABASE CONNECTIONS WARM_S SECONDS, as _peers.py describes. */
public class JMeterPlan {
  static TestPlanStats run(String address, String database, int threads, double seconds) throws Exception {
    String url =
        "jdbc:snowflake://" + address + "/?account=embedded&ssl=off&schema=PUBLIC&tracing=OFF&QUERY_TAG=peer"
            + "&CLIENT_TELEMETRY_ENABLED=false&db=" + database;
    return testPlan(
            jdbcConnectionPool("pool", SnowflakeDriver.class, url).user("peer").password("any"),
            threadGroup(
                threads,
                Duration.ofMillis((long) (1000 * seconds)),
                jdbcSampler("pool", "SELECT V FROM KV WHERE ID = ?").param("${__Random(1,50)}", Types.INTEGER)))
        .run();
  }

  public static void main(String[] arguments) throws Exception {
    String address = arguments[0], database = arguments[1];
    int threads = Integer.parseInt(arguments[2]);
    double warmS = Double.parseDouble(arguments[3]), seconds = Double.parseDouble(arguments[4]);
    if (seconds > 0) {
      run(address, database, threads, warmS);
      System.out.println("ready");
      StatsSummary all = run(address, database, threads, seconds).overall();
      System.out.printf(
          "{\"statements\": %d, \"errors\": %d, \"p50_ms\": %d, \"p99_ms\": %d}%n",
          all.samplesCount(), all.errorsCount(), all.sampleTime().median().toMillis(),
          all.sampleTime().perc99().toMillis());
      System.exit(0);
    }
    Thread plan =
        new Thread(
            () -> {
              try {
                run(address, database, threads, 24 * 3600);
              } catch (Exception error) {
                error.printStackTrace();
              }
              Runtime.getRuntime().halt(1);
            });
    plan.start();
    Thread.sleep((long) (1000 * warmS));
    System.out.println("ready");
    while (System.in.read() >= 0) {}
    Runtime.getRuntime().halt(0);
  }
}
