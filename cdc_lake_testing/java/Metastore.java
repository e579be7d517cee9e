import java.net.InetSocketAddress;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** A Hive metastore on a port of 127.0.0.1: its own main class listens on all interfaces. The argument is a folder. */
class Metastore {
  public static void main(String[] arguments) throws Exception {
    var conf = new HiveConf();
    String derby = "jdbc:derby:" + arguments[0] + "/metastore;create=true";
    conf.setVar(HiveConf.ConfVars.METASTORECONNECTURLKEY, derby);
    conf.set("datanucleus.schema.autoCreateAll", "true");
    conf.set("hive.metastore.schema.verification", "false");
    conf.set("hive.metastore.disallow.incompatible.col.type.changes", "false"); // Iceberg matches columns by id
    conf.set("datanucleus.connectionPoolingType", "NONE");
    conf.setVar(HiveConf.ConfVars.METASTOREWAREHOUSE, "file:" + arguments[0] + "/hive");
    TxnDbUtil.prepDb(conf); // the tables of locks
    var handler = new HiveMetaStore.HMSHandler("metastore", conf, false);
    var processor = new TSetIpAddressProcessor(HiveMetaStore.newRetryingHMSHandler(handler, conf));
    var socket = new TServerSocket(new InetSocketAddress("127.0.0.1", 0));
    System.out.println("port " + socket.getServerSocket().getLocalPort());
    new TThreadPoolServer(new TThreadPoolServer.Args(socket).processor(processor)).serve();
  }
}
