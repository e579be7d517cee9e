package cdc_lake;

import io.delta.storage.HadoopFileSystemLogStore;
import java.io.ByteArrayOutputStream;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Puts each entry of a Delta log into S3 on the condition that it does not exist, so that of two writers of a version
 * one is refused. Delta's own store for S3 checks first and writes then, which only one driver may do.
 *
 * <p>A put whose reply was lost may have succeeded: S3A repeats it and is refused. An entry has the identifier of its
 * transaction, so if the entry in the store is byte for byte the one that was to be written, it is this writer's.
 */
public class ConditionalPutLogStore extends HadoopFileSystemLogStore {

  private static final String CONDITION = "fs.option.create.conditional.overwrite";

  public ConditionalPutLogStore(Configuration configuration) {
    super(configuration);
  }

  @Override
  public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
      throws IOException {
    ByteArrayOutputStream entry = new ByteArrayOutputStream();
    while (actions.hasNext()) {
      entry.write(actions.next().getBytes(StandardCharsets.UTF_8));
      entry.write('\n');
    }
    FileSystem store = path.getFileSystem(configuration);
    try {
      put(store, path, entry.toByteArray(), overwrite);
    } catch (IOException failure) {
      byte[] present = overwrite ? null : read(store, path);
      if (present == null) {
        throw failure;
      }
      if (!Arrays.equals(present, entry.toByteArray())) {
        FileAlreadyExistsException refused = new FileAlreadyExistsException(path.toString());
        refused.addSuppressed(failure);
        throw refused;
      }
    }
  }

  @Override
  public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
    return false;
  }

  private static void put(FileSystem store, Path path, byte[] entry, boolean overwrite) throws IOException {
    FSDataOutputStreamBuilder<?, ?> builder = store.createFile(path).overwrite(true).recursive();
    if (!overwrite) {
      builder.must(CONDITION, true);
    }
    // The whole entry is in memory and put by `close`, so an interrupted write leaves nothing behind.
    try (FSDataOutputStream out = (FSDataOutputStream) builder.build()) {
      out.write(entry);
    }
  }

  private static byte[] read(FileSystem store, Path path) throws IOException {
    try (InputStream in = store.open(path)) {
      return in.readAllBytes();
    } catch (FileNotFoundException absent) {
      return null;
    }
  }
}
