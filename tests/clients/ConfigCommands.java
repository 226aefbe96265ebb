import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.kafka.common.utils.Exit;

/** Kafka's kafka-configs once for each line of standard input, in one process: starting Java takes longer than the work. */
public class ConfigCommands {
    static class Ended extends RuntimeException {}

    public static void main(String[] none) throws Exception {
        Exit.setExitProcedure((status, message) -> { throw new Ended(); });
        System.setErr(System.out);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                kafka.admin.ConfigCommand.main(line.split(" "));
            } catch (Ended ended) {
                System.out.println("it failed");
            }
            System.out.println("--- " + line);
        }
    }
}
