package v1alpha1_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestSamplesAreAccepted(t *testing.T) {
	files, err := filepath.Glob("../../config/samples/*.yaml")
	if err != nil || len(files) < 9 {
		t.Fatalf("the samples are %q, error %v", files, err)
	}
	list, err := os.ReadFile("../../config/samples/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{} // files, by kind and name of their object
	for _, file := range files {
		name := filepath.Base(file)
		if name == "kustomization.yaml" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			object := &unstructured.Unstructured{}
			if err := yaml.UnmarshalStrict(content, &object.Object); err != nil {
				t.Fatal(err)
			}
			key := object.GetKind() + "/" + object.GetName()
			if other := names[key]; other != "" {
				t.Errorf("it and %s are one object, %s: kubectl apply -k refuses both", other, key)
			}
			names[key] = name
			object.SetNamespace("default")
			// Strictly: a field that the schema does not know is refused too.
			strict := client.WithFieldValidation(server.Client, "Strict")
			if err := strict.Create(t.Context(), object, client.DryRunAll); err != nil {
				t.Error(err)
			}
			if !strings.Contains(string(list), "- "+name+"\n") {
				t.Error("kustomization.yaml does not list it")
			}
		})
	}
}

// TestTheSampleOfAContractAsksBeforeAnyPush: whichever agent it is, and by whichever way it pushes.
func TestTheSampleOfAContractAsksBeforeAnyPush(t *testing.T) {
	content, err := os.ReadFile("../../config/samples/contract.yaml")
	if err != nil {
		t.Fatal(err)
	}
	task := &v1alpha1.Task{}
	if err := yaml.UnmarshalStrict(content, task); err != nil {
		t.Fatal(err)
	}
	asks := func(tool, input string) bool {
		for _, rule := range task.Spec.CheckpointPolicy.BeforeRiskyTools {
			if rule.Action == v1alpha1.RiskyToolAsk && regexp.MustCompile(rule.Tool).MatchString(tool) && regexp.MustCompile(rule.Input).MatchString(input) {
				return true
			}
		}
		return false
	}
	for _, c := range []struct {
		tool, input string
		want        bool
	}{
		{"mcp__clew__publish", `{"task":"parser"}`, true}, // Claude Code, Codex and Qwen Code
		{"mcp_clew_publish", `{}`, true},                  // Gemini CLI
		{"clew_publish", `{"task":"parser"}`, true},       // OpenCode
		{"Bash", `{"command":"git -C there push"}`, true},
		{"run_shell_command", `{"command":"cd x\nclew publish parser"}`, true},
		{"command_execution", `{"command":"clew publish"}`, true},
		{"mcp__clew__task_create", `{"name":"publish"}`, false},
		{"Bash", `{"command":"clew task wait"}`, false},
	} {
		if got := asks(c.tool, c.input); got != c.want {
			t.Errorf("a person is asked about %s %s: %v, want %v", c.tool, c.input, got, c.want)
		}
	}
}
