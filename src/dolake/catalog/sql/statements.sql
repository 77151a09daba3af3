-- name: create_namespace
INSERT INTO namespaces (key, parent, properties) VALUES (:key, :parent, :properties) ON CONFLICT DO NOTHING;
-- name: namespace_properties
SELECT properties FROM namespaces WHERE key = :key;
-- name: set_namespace_properties
UPDATE namespaces SET properties = :properties WHERE key = :key;
-- name: drop_namespace
DELETE FROM namespaces WHERE key = :key;
-- name: has_child_namespace
SELECT 1 FROM namespaces WHERE parent = :key LIMIT 1;
-- name: has_pointer
SELECT 1 FROM pointers WHERE namespace = :key LIMIT 1;
-- name: list_namespaces
SELECT key FROM namespaces WHERE parent = :parent AND key > :after ORDER BY key LIMIT :limit;
-- name: list_names
SELECT name FROM pointers WHERE namespace = :namespace AND kind = :kind AND name > :after ORDER BY name LIMIT :limit;
-- name: find
SELECT namespace, name, kind, uuid, metadata_location, version, is_managed, folders
FROM pointers WHERE namespace = :namespace AND name = :name;
-- name: all_tables
SELECT namespace, name, kind, uuid, metadata_location, version, is_managed, folders FROM pointers WHERE kind = 'table';
-- name: is_pointed_at
SELECT 1 FROM pointers WHERE metadata_location = :metadata_location LIMIT 1;
-- name: all_pointers
SELECT namespace, name, kind, uuid, metadata_location, version, is_managed, folders FROM pointers;
-- name: managed_pointers
SELECT namespace, name, kind, uuid, metadata_location, version, is_managed, folders FROM pointers WHERE is_managed = 1;
-- name: create
INSERT INTO pointers (namespace, name, kind, uuid, metadata_location, version, is_managed, folders)
VALUES (:namespace, :name, :kind, :uuid, :metadata_location, 1, :is_managed, :folders);
-- name: move
UPDATE pointers
SET metadata_location = :metadata_location, version = version + 1, is_managed = coalesce(:is_managed, is_managed),
    folders = coalesce(:folders, folders), uuid = coalesce(:uuid, uuid)
WHERE namespace = :namespace AND name = :name AND kind = :kind AND version = :version;
-- name: drop
DELETE FROM pointers WHERE namespace = :namespace AND name = :name AND kind = :kind;
-- name: rename
UPDATE pointers SET namespace = :to_namespace, name = :to_name WHERE namespace = :namespace AND name = :name AND kind = :kind;
-- name: published
SELECT position, generation, at_ms FROM published;
-- name: publish
UPDATE published SET position = :to_position, at_ms = :at_ms
WHERE position = :from_position AND generation = :generation;
-- name: note_publish
INSERT INTO publishes (position, at_ms) VALUES (:position, :at_ms)
ON CONFLICT (position) DO UPDATE SET at_ms = excluded.at_ms;
-- name: time_of
SELECT at_ms FROM publishes WHERE position <= :position ORDER BY position DESC LIMIT 1;
-- name: position_at
SELECT position FROM publishes WHERE at_ms <= :at_ms ORDER BY position DESC LIMIT 1;
-- name: begin_generation
UPDATE published SET generation = generation + 1;
-- name: recall_answer
SELECT answer FROM answers WHERE key = :key AND until_ms > :now_ms;
-- name: keep_answer
INSERT INTO answers (key, answer, until_ms) VALUES (:key, :answer, :until_ms)
ON CONFLICT (key) DO UPDATE SET answer = excluded.answer, until_ms = excluded.until_ms;
-- name: remember
INSERT INTO answers (key, answer, until_ms) VALUES (:key, :answer, :until_ms)
ON CONFLICT (key) DO UPDATE SET answer = excluded.answer, until_ms = excluded.until_ms
WHERE answers.until_ms <= :now_ms;
-- name: forget_answers
DELETE FROM answers WHERE until_ms <= :now_ms;
-- name: count_rows
SELECT (SELECT count(*) FROM namespaces), (SELECT count(*) FROM pointers), (SELECT count(*) FROM publishes),
       (SELECT count(*) FROM answers);
-- name: every_namespace
SELECT key, parent, properties FROM namespaces;
-- name: every_publish
SELECT position, at_ms FROM publishes;
-- name: every_answer
SELECT key, answer, until_ms FROM answers;
-- name: enter_pointer
INSERT INTO pointers (namespace, name, kind, uuid, metadata_location, version, is_managed, folders)
VALUES (:namespace, :name, :kind, :uuid, :metadata_location, :version, :is_managed, :folders);
-- name: set_published
UPDATE published SET position = :position, generation = :generation, at_ms = :at_ms;
