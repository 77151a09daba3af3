"""The few lines of Java that DoLake brings along: two kinds of files for Iceberg's library, compiled when Spark starts.

From iceberg.py. Janino is what Spark compiles its own code with, so no compiler has to be there. It knows little of
generics, which is why the Java below has none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

PLAIN_FILES = "dolake.PlainFiles"
STORE_FILES = "dolake.StoreFiles"

_SOURCES = {
    # Hadoop's own file system puts a checksum file beside each of ours; the raw one starts a process, `chmod`, for each
    # file that it makes, which was half of what a publish cost in Java.
    PLAIN_FILES: """\
package dolake;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
public final class PlainFiles extends org.apache.hadoop.fs.RawLocalFileSystem {
    public void setPermission(Path path, FsPermission permission) {}
}
""",
    # Each publish reads manifests and a list of them that the one before has written, and some of them twice; each read
    # asks for the length first. They never change, so those that were written or read last stay in memory: a publish
    # asks the store for nothing.
    STORE_FILES: """\
package dolake;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.iceberg.inmemory.InMemoryInputFile;
import org.apache.iceberg.io.InputFile;
import org.apache.iceberg.io.OutputFile;
import org.apache.iceberg.io.PositionOutputStream;
public class StoreFiles extends org.apache.iceberg.aws.s3.S3FileIO {
    private static final int KEPT_MAX = 64 * 1024 * 1024;
    private static final int ONE_MAX = 4 * 1024 * 1024;
    private static final LinkedHashMap FILES = new LinkedHashMap(64, 0.75f, true);
    private static int size = 0;

    static synchronized byte[] find(String path) {
        return (byte[]) FILES.get(path);
    }

    static synchronized void keep(String path, byte[] data) {
        if (data.length > ONE_MAX || FILES.containsKey(path)) {
            return;
        }
        FILES.put(path, data);
        size += data.length;
        Iterator oldest = FILES.entrySet().iterator();
        while (size > KEPT_MAX && oldest.hasNext()) {
            size -= ((byte[]) ((Map.Entry) oldest.next()).getValue()).length;
            oldest.remove();
        }
    }

    public InputFile newInputFile(String path) {
        return path.endsWith(".avro") ? whole(path, super.newInputFile(path)) : super.newInputFile(path);
    }

    public InputFile newInputFile(String path, long length) {
        InputFile file = super.newInputFile(path, length);
        return path.endsWith(".avro") && length <= ONE_MAX ? whole(path, file) : file;
    }

    private static InputFile whole(String path, InputFile file) {
        byte[] data = find(path);
        if (data == null) {
            try {
                InputStream stream = file.newStream();
                try {
                    data = stream.readAllBytes();
                } finally {
                    stream.close();
                }
            } catch (IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
            keep(path, data);
        }
        return new InMemoryInputFile(path, data);
    }

    public OutputFile newOutputFile(String path) {
        OutputFile file = super.newOutputFile(path);
        return path.endsWith(".avro") ? new KeptFile(file) : file;
    }

    public static class KeptFile implements OutputFile {
        private final OutputFile file;
        public KeptFile(OutputFile file) { this.file = file; }
        public PositionOutputStream create() { return new KeptStream(file.location(), file.create()); }
        public PositionOutputStream createOrOverwrite() {
            return new KeptStream(file.location(), file.createOrOverwrite());
        }
        public String location() { return file.location(); }
        public InputFile toInputFile() { return file.toInputFile(); }
    }

    public static class KeptStream extends PositionOutputStream {
        private final String path;
        private final PositionOutputStream stream;
        private final ByteArrayOutputStream copy = new ByteArrayOutputStream();
        private boolean isClosed = false;
        public KeptStream(String path, PositionOutputStream stream) { this.path = path; this.stream = stream; }
        public long getPos() throws IOException { return stream.getPos(); }
        public long storedLength() throws IOException { return stream.storedLength(); }
        public void write(int b) throws IOException { stream.write(b); copy.write(b); }
        public void write(byte[] b, int off, int len) throws IOException {
            stream.write(b, off, len);
            copy.write(b, off, len);
        }
        public void flush() throws IOException { stream.flush(); }
        public void close() throws IOException {
            stream.close();
            if (!isClosed) {
                isClosed = true;
                keep(path, copy.toByteArray());
            }
        }
    }
}
""",
}


def add_class(spark: SparkSession, name: str) -> str:
    """Have Java know this class, once; returns its name."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    folder = Path(spark.sparkContext._temp_dir or "", "classes", name)
    if not folder.exists():
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook(_SOURCES[name])
        codes = compiler.getBytecodes()
        for each in list(codes):
            file = folder / f"{each.replace('.', '/')}.class"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(bytes(codes.get(each)))
        loader.addURL(jvm.java.net.URL(f"{folder.as_uri()}/"))
    return name
