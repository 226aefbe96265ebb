// Sends records to a tidelog node over gRPC and reads a topic, with nothing but the code that protoc generates from the .proto
// files.
//
//	grpc_go ADDRESS TOPIC VALUE...
//
// Each VALUE is sent with the key "go" and a header. Then every record of the topic is printed as a line of JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	tidelog "tidelog/v1"
)

type line struct {
	Partition   int32             `json:"partition"`
	Offset      int64             `json:"offset"`
	TimestampMs int64             `json:"timestamp_ms"`
	Key         *string           `json:"key"`
	Value       *string           `json:"value"`
	Headers     map[string]string `json:"headers"`
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: grpc_go ADDRESS TOPIC VALUE...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(address, topic string, values []string) error {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	records := tidelog.NewRecordsClient(connection)
	if err := send(records, topic, values); err != nil {
		return err
	}
	return read(records, topic)
}

func send(records tidelog.RecordsClient, topic string, values []string) error {
	request := &tidelog.SendRequest{Topic: topic}
	for _, value := range values {
		request.Records = append(request.Records, &tidelog.RecordToSend{
			Key:     []byte("go"),
			Value:   []byte(value),
			Headers: []*tidelog.RecordHeader{{Name: "language", Value: []byte("Go")}},
		})
	}
	answer, err := records.Send(context.Background(), request)
	if err != nil {
		return err
	}
	for at, sent := range answer.Records {
		if sent.Error != nil {
			return fmt.Errorf("%s was not sent: %s", values[at], sent.Error.Message)
		}
	}
	return nil
}

func read(records tidelog.RecordsClient, topic string) error {
	stream, err := records.Read(context.Background(), &tidelog.ReadRequest{Topic: topic, UntilEnd: true})
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, record := range response.Records {
			headers := map[string]string{}
			for _, header := range record.Headers {
				headers[header.Name] = string(header.Value)
			}
			found := line{
				Partition: record.Partition, Offset: record.Offset, TimestampMs: record.TimestampMs,
				Key: text(record.Key), Value: text(record.Value), Headers: headers,
			}
			if err := out.Encode(found); err != nil {
				return err
			}
		}
	}
}

// text is the text of a key or value, nil if the record has none.
func text(data []byte) *string {
	if data == nil {
		return nil
	}
	found := string(data)
	return &found
}
