import java.nio.file.Path;
import java.time.Duration;
import org.neo4j.configuration.GraphDatabaseInternalSettings;
import org.neo4j.configuration.GraphDatabaseSettings;
import org.neo4j.configuration.connectors.BoltConnector;
import org.neo4j.configuration.helpers.SocketAddress;
import org.neo4j.dbms.api.DatabaseManagementServiceBuilder;
import org.neo4j.io.ByteUnit;

/** Arguments: folder, port, and "auth" where users have to log in. Says "ready" when Bolt answers. */
public class Neo4jServer {
    public static void main(String[] arguments) throws Exception {
        var server = new DatabaseManagementServiceBuilder(Path.of(arguments[0]))
                .setConfig(BoltConnector.enabled, true)
                .setConfig(BoltConnector.listen_address, new SocketAddress("127.0.0.1", Integer.parseInt(arguments[1])))
                .setConfig(GraphDatabaseSettings.auth_enabled, arguments.length > 2 && arguments[2].equals("auth"))
                // Else it takes half the memory, and a quarter of a gigabyte of disk for each database's log.
                .setConfig(GraphDatabaseSettings.pagecache_memory, ByteUnit.mebiBytes(64))
                .setConfig(GraphDatabaseSettings.preallocate_logical_logs, false)
                // Tests fill and empty a database again and again: each query would be planned anew every few seconds.
                .setConfig(GraphDatabaseSettings.cypher_min_replan_interval, Duration.ofDays(1))
                .setConfig(GraphDatabaseInternalSettings.cypher_replan_interval_target, Duration.ofDays(1))
                // Plans are made for a few rows, by a cold server: kinds of parameters share them, and joins are chosen soon.
                .setConfig(GraphDatabaseInternalSettings.cypher_size_hint_parameters, false)
                .setConfig(GraphDatabaseInternalSettings.cypher_idp_solver_duration_threshold, 10L)
                .setConfig(GraphDatabaseInternalSettings.cypher_idp_solver_table_threshold, 16)
                .build();
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdown));
        System.out.println("ready");
        Thread.currentThread().join();
    }
}
