import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.core.execution.SavepointFormatType;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.functions.ScalarFunction;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * A peer: Flink CDC drains a slot into an Iceberg table that is kept by key, both declared in SQL, on a cluster of this
 * process. `flink_cdc.py` starts it. Seconds run from the first row until a savepoint that ends the job has committed
 * the last one, without the start of Java, of the cluster and of the connector. The table is read by a query of its own
 * at the end, outside the timing.
 */
public class FlinkCdc {
    private static final String COLUMNS =
            "id BIGINT, customer BIGINT, state STRING, amount DECIMAL(12, 2), quantity INT, note STRING, email STRING, "
                    + "created TIMESTAMP_LTZ(6), changed TIMESTAMP(6), paid BOOLEAN, PRIMARY KEY (id) NOT ENFORCED";

    /** How many rows the last transaction deletes: those with the greatest keys of the transaction before it. */
    private static final int DELETED = 50;

    private static volatile long begun;
    private static final AtomicInteger LAST = new AtomicInteger();

    /** Passes a value on; sees when the first row comes, and how often the rows do that are deleted last. */
    public static class Seen extends ScalarFunction {
        public Integer eval(Integer value, Long id, Long last) {
            if (begun == 0) {
                begun = System.nanoTime();
            }
            if (last - DELETED < id && id <= last) {
                LAST.incrementAndGet();
            }
            return value;
        }
    }

    private record Given(
            String host, String port, String user, String password, String database, String slot, String publication,
            String folder, long last) {}

    public static void main(String[] words) {
        try {
            System.out.println(drained(new Given(
                    words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7],
                    Long.parseLong(words[8]))));
            System.out.flush();
            System.exit(0); // the cluster has threads that do not end
        } catch (Exception error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    /** What draining took, and what it left. */
    private static String drained(Given given) throws Exception {
        Configuration settings = new Configuration();
        settings.setString("parallelism.default", "1");
        settings.setString("execution.checkpointing.interval", "5 s"); // what is committed at a time
        settings.setString("execution.checkpointing.storage", "filesystem");
        settings.setString("execution.checkpointing.dir", "file://" + given.folder + "/checkpoints");
        settings.setString("restart-strategy.type", "none");
        TableEnvironment tables = environment(EnvironmentSettings.newInstance().inStreamingMode(), settings, given);
        tables.createTemporarySystemFunction("seen", Seen.class);
        tables.executeSql("CREATE TABLE source (" + COLUMNS + ") WITH (" + options(
                "connector", "postgres-cdc",
                "hostname", given.host, "port", given.port, "username", given.user, "password", given.password,
                "database-name", given.database, "schema-name", "public", "table-name", "orders",
                "slot.name", given.slot, "decoding.plugin.name", "pgoutput", "changelog-mode", "upsert",
                "scan.incremental.snapshot.enabled", "true", "scan.startup.mode", "committed-offset",
                "debezium.publication.name", given.publication, "debezium.publication.autocreate.mode", "disabled",
                "debezium.slot.drop.on.stop", "false") + ")");
        tables.executeSql("CREATE DATABASE lake.peer");
        tables.executeSql("CREATE TABLE lake.peer.orders (" + COLUMNS + ") WITH ("
                + options("format-version", "2", "write.upsert.enabled", "true") + ")");
        JobClient job = tables.executeSql("INSERT INTO lake.peer.orders SELECT id, customer, state, amount, "
                + "seen(quantity, id, CAST(" + given.last + " AS BIGINT)), note, email, created, changed, paid "
                + "FROM source").getJobClient().orElseThrow();
        CompletableFuture<?> ended = job.getJobExecutionResult();
        while (LAST.get() < 2 * DELETED) { // once each as it was made, once each as it is deleted
            if (ended.isDone()) {
                ended.get(); // says why
            }
            Thread.sleep(20);
        }
        String savepoint = Path.of(given.folder, "savepoint").toUri().toString();
        job.stopWithSavepoint(false, savepoint, SavepointFormatType.NATIVE).get();
        double seconds = (System.nanoTime() - begun) / 1e9;
        TableEnvironment batch = environment(EnvironmentSettings.newInstance().inBatchMode(), settings, given);
        String left = "SELECT COUNT(*), SUM(id), SUM(CAST(quantity AS BIGINT)) FROM lake.peer.orders";
        try (CloseableIterator<Row> rows = batch.executeSql(left).collect()) {
            Row row = rows.next();
            return String.format("{\"seconds\": %s, \"rows\": %s, \"ids\": %s, \"quantity\": %s}",
                    seconds, row.getField(0), row.getField(1), row.getField(2));
        }
    }

    /** Tables with the catalog `lake` in the folder. */
    private static TableEnvironment environment(EnvironmentSettings.Builder mode, Configuration settings, Given given) {
        TableEnvironment tables = TableEnvironment.create(mode.withConfiguration(settings).build());
        String warehouse = "file://" + given.folder + "/warehouse";
        tables.executeSql("CREATE CATALOG lake WITH ("
                + options("type", "iceberg", "catalog-type", "hadoop", "warehouse", warehouse) + ")");
        return tables;
    }

    /** Names and values by turns, as SQL. */
    private static String options(String... words) {
        return Stream.iterate(0, at -> at < words.length, at -> at + 2)
                .map(at -> "'" + words[at] + "' = '" + words[at + 1].replace("'", "''") + "'")
                .collect(Collectors.joining(", "));
    }
}
