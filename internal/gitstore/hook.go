package gitstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// What the handler tells the hook, through git, by environment.
const (
	hookProbe       = "CLEW_HOOK_PROBE"
	hookProbeAnswer = "clew-hook"

	hookTaskName = "CLEW_TASK_NAME"
	hookTaskUID  = "CLEW_TASK_UID"
	hookAttempt  = "CLEW_TASK_ATTEMPT"
	hookFences   = "CLEW_FENCES"
	hookSources  = "CLEW_TASK_SOURCES"
	hookObjects  = "CLEW_PACK_OBJECTS"
	hookGit      = "CLEW_GIT"
	hookConfig   = "CLEW_GIT_CONFIG"
	hookMemory   = "CLEW_GIT_MEMORY"

	// fenceDescriptor is the number under which git and the hook inherit the
	// lock file of the task's fence; useDescriptor is the repository's lock.
	fenceDescriptor = 3
	useDescriptor   = 4
)

// hookTimeout is how long the hook waits for the lock of the fence, which is
// only ever held for the writing of a small file.
const hookTimeout = 10 * time.Second

// PreReceive is git's pre-receive hook: it reads the ref updates from stdin,
// one "<old> <new> <ref>" a line, and returns an error if any of them may not
// happen, which refuses the push as a whole. Git runs it when all objects have
// arrived and been checked, before they become part of the repository.
//
// It takes the lock of the task's fence, shared, on a file that git inherited
// from the handler. The lock outlives the hook: it holds until git has moved
// the refs and the last process of the push has ended. A newer attempt takes
// the same lock alone to record itself, so that none of the pushes it overtakes
// can land after it.
func PreReceive(stdin io.Reader, stdout io.Writer, getenv func(string) string) error {
	if getenv(hookProbe) != "" {
		_, err := fmt.Fprintln(stdout, hookProbeAnswer)
		return err
	}
	task, err := hookTask(getenv)
	if err != nil {
		return gitstoreapi.New(gitstoreapi.Unavailable, "the push was not started by the gitstore: %v", err)
	}
	commands, err := hookCommands(stdin)
	if err != nil {
		return gitstoreapi.New(gitstoreapi.BadRequest, "the ref updates cannot be read: %v", err)
	}
	if refused := checkCommands(task, commands); refused != nil {
		return refused
	}
	if refused := hookBrought(context.Background(), task, commands, getenv); refused != nil {
		return refused
	}
	ctx, cancel := context.WithTimeout(context.Background(), hookTimeout)
	defer cancel()
	// Not closed: closing changes nothing, as git holds the same open file.
	if err := lock(ctx, os.NewFile(fenceDescriptor, "fence"), syscall.LOCK_SH); err != nil {
		return gitstoreapi.New(gitstoreapi.Unavailable, "the fence of the task could not be locked: %v; try again", err)
	}
	newest, err := fences{folder: getenv(hookFences)}.newest(task.UID)
	if errors.Is(err, errTaskDeleted) {
		return taskDeleted(task)
	}
	if err != nil {
		return gitstoreapi.New(gitstoreapi.Unavailable, "the fence of the task could not be read: %v", err)
	}
	if refused := stale(task, newest); refused != nil {
		return refused
	}
	return nil
}

// hookBrought refuses a push that takes objects for its own which it has not
// brought. Git has made sure that they exist, which is not enough: they may be
// another task's.
func hookBrought(ctx context.Context, task Task, commands []Command, getenv func(string) string) *gitstoreapi.Refusal {
	path, err := os.Getwd() // git runs the hook in the repository
	memory, memoryErr := strconv.ParseInt(getenv(hookMemory), 10, 64)
	objects, objectsErr := strconv.Atoi(getenv(hookObjects))
	if err := errors.Join(err, memoryErr, objectsErr); err != nil {
		return gitstoreapi.New(gitstoreapi.Unavailable, "the push was not started by the gitstore: %v", err)
	}
	var tips []string
	for _, command := range commands {
		tips = append(tips, command.New)
	}
	g := git{binary: getenv(hookGit), config: getenv(hookConfig), memory: memory}
	err = checkBrought(ctx, g, path, getenv("GIT_QUARANTINE_PATH"), viewOf(Caller{Task: &task}), tips, objects)
	switch {
	case errors.Is(err, errNotBrought), errors.Is(err, errThinPack):
		return gitstoreapi.New(gitstoreapi.ObjectsRefused, "%v", err)
	case err != nil:
		return gitstoreapi.New(gitstoreapi.Unavailable, "the objects of the push could not be checked: %v; try again", err)
	}
	return nil
}

// hookEnvironment tells the hook whose push it checks.
func hookEnvironment(task Task, fences fences, g git) []string {
	return []string{
		hookSources + "=" + strings.Join(task.Sources, " "),
		hookGit + "=" + g.binary,
		hookConfig + "=" + g.config,
		hookMemory + "=" + strconv.FormatInt(g.memory, 10),
		hookTaskName + "=" + task.Name,
		hookTaskUID + "=" + task.UID,
		hookAttempt + "=" + strconv.FormatInt(task.Attempt, 10),
		hookFences + "=" + fences.folder,
	}
}

func hookTask(getenv func(string) string) (Task, error) {
	attempt, err := strconv.ParseInt(getenv(hookAttempt), 10, 64)
	task := Task{Name: getenv(hookTaskName), UID: getenv(hookTaskUID), Attempt: attempt, Sources: strings.Fields(getenv(hookSources))}
	if err != nil || task.Name == "" || task.UID == "" || getenv(hookFences) == "" {
		return Task{}, errors.New("the environment does not say whose push it is")
	}
	return task, nil
}

func hookCommands(stdin io.Reader) ([]Command, error) {
	var commands []Command
	lines := bufio.NewScanner(stdin)
	for lines.Scan() {
		fields := strings.SplitN(lines.Text(), " ", 3)
		if len(fields) != 3 {
			return nil, fmt.Errorf("%q is not an update", lines.Text())
		}
		commands = append(commands, Command{Old: fields[0], New: fields[1], Ref: fields[2]})
	}
	return commands, lines.Err()
}
